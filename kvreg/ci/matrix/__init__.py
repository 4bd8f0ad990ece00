"""Which tests run on which machine: runners and the registry become CI jobs, and a change picks among them."""
