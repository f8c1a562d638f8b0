//! Redfish BMCs, vendor neutral: what the BMC lists decides, never its vendor or generation.
