"""oarbank-cas: the content-addressed artifact store and result cache of the Oarbank job fleet."""
