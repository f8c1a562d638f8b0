# shellcheck shell=bash
# sushy-emulator: a Redfish service that is not ours, for the acceptance tests.
virtual_environment sushy
