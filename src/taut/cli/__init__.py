"""The command line: one file per subcommand. Parsing and printing only; heavy imports happen inside the commands."""
