"""The only wiring: files in, floors called in order, values out.

`import headrace` shows what is here; every name loads its module when it is first used.
"""
