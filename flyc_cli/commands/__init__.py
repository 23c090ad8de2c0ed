"""The commands: each parses its arguments, calls one function and renders what that returns."""
