"""One run of a federation without a network: training, rule and session put together, message by message.

The classes here are driven from outside: a transport hands in what arrived and sends what comes back. The simulator
and the services drive the same code.
"""
