"""The operations of the library, a module for each."""
