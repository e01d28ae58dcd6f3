"""`python -m batchline`."""

from batchline.cli.main import main

main()
