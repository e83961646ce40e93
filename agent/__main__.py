"""`python -m agent` is `edge-agent`."""

from agent.start import main

if __name__ == "__main__":
    main()
