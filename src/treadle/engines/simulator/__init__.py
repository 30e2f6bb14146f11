"""An engine in virtual time: the very same loop, policies and enforcers, without a machine to run on."""
