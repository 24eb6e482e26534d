"""`python -m fedscout` is `fedscout`."""

from fedscout.experiments.cli.main import main

if __name__ == "__main__":
    main()
