"""`python -m flyc_cli` is the `flyc` command."""

from flyc_cli.main import main

main()
