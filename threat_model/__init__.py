"""The threat model as code: attackers that run against the real federation, and a register of the threats.

Not part of the package that is installed. See ``README.md`` beside this file.
"""
