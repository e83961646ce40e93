"""`python -m agent` is `edge-agent`."""

from agent.cli import main

if __name__ == "__main__":
    main()
