"""What `flyc inspect` shows, as functions that return data; rendering is in `flyc_cli.views`."""
