"""A store in an S3 bucket: AWS, or a server that speaks its language. Importing this package imports no S3 client."""
