"""A read-only fsspec filesystem over a store, for programs that read files by URL: pandas, pyarrow, dask.

    oarbank-cas://dataset/<digest>/<path>                  a file of a dataset
    oarbank-cas://result/<job key>/<artifact>/<path>       the same of a result; <job key>@<class> names the class
    oarbank-cas://blob/<digest>                            a blob

fsspec finds it by the entry point `fsspec.specs`; nothing else of the package imports this, or fsspec.
"""

from oarbank_cas.filesystem.fs import StoreFileSystem

__all__ = ["StoreFileSystem"]
