"""The command line. Commands parse their arguments, call the library and print the results."""
