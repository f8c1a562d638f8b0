# shellcheck shell=bash
# DMTF's Redfish client and validators: they judge our simulator and our end states independently.
virtual_environment redfish
