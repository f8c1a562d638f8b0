//! Servers started by the tests.
#![allow(dead_code)]

pub mod bucket;
pub mod cluster_api;
pub mod faulty;
pub mod gate;
pub mod ironcore;
pub mod ironic;
pub mod keystone;
pub mod kubernetes;
pub mod kubernetes_proxy;
pub mod lent;
pub mod metal3;
pub mod parts;
pub mod postgres;
pub mod roles;
pub mod server;
pub mod toxiproxy;
