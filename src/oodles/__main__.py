"""``python -m oodles`` is the ``oodles`` command."""

from oodles.cli import main

main()
