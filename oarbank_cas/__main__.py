"""`python -m oarbank_cas`: the command line."""

from oarbank_cas.cli import main

if __name__ == "__main__":
    main()
