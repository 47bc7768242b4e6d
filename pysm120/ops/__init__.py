"""The operations of the library, a module for each.

They share the modules that call C: `call` makes a call, `plan` checks the forms of its arrays, `table` describes arrays
and dimensions, `operands` brings arrays to a device, `options` checks other arguments. These modules know no operation.
"""
