"""The operations of the library, a module for each.

They share the way to C: `call` makes a call, `plan` checks the forms of its arrays, `table` has their rows and
dimensions, `operands` brings them to a device, `options` checks what is no array. None of these knows an operation.
"""
