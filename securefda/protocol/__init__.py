"""The secure sessions SFDA-SA/1 and SFDA-SA/2 as pure state machines, with their messages, checks, masks and encodings.

No network, no disk, no clock, no global randomness.
"""
