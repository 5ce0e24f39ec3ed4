"""The secure session SFDA-SA/1 as pure state machines: no network, no disk, no clock, no global randomness."""
