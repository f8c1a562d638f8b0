//! The data that stores keep of a server and its maintenances, and that rules read and change. It
//! knows no rule.

pub mod alias_moves;
pub mod aliases;
pub mod approval;
pub mod boot_method;
pub mod drain;
pub mod effects;
pub mod extension;
pub mod facts;
pub mod finish;
pub mod gate;
pub mod hand_over;
pub mod ids;
pub mod inspection;
pub mod location;
pub mod lock;
pub mod machine;
pub mod node;
pub mod operation;
pub mod ownership;
pub mod restrictions;
pub mod service;
pub mod shared;
pub mod shown_time;
pub mod spec;
pub mod state;
pub mod step;
pub mod tolerated;
pub mod unreadable;
pub mod update;
pub mod verdict;
pub mod window;
