"""`python -m triptych_cli`: the command `triptych` of this very interpreter."""

from triptych_cli.main import app

if __name__ == "__main__":
    app(prog_name="triptych")
