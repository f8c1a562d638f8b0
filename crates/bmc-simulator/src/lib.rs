//! A Redfish service that behaves like a fleet of BMCs.
