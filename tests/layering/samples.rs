//! The checker finds each kind of violation, and accepts valid code.

use crate::{
    check::{self, Source},
    rules,
};

fn found(file: &str, text: &str) -> Vec<String> {
    let source = Source { file: file.to_owned(), text: text.to_owned() };
    check::violations(&rules(), &[source])
}

#[track_caller]
fn refused(file: &str, text: &str, why: &str) {
    let found = found(file, text);
    assert!(found.len() == 1 && found[0].contains(why), "{text}\nexpected one: {why}\nfound: {found:#?}");
}

#[track_caller]
fn allowed(file: &str, text: &str) {
    assert_eq!(found(file, text), [] as [&str; 0], "{text}");
}

#[test]
fn a_room_may_not_look_upwards() {
    refused("store/sqlite.rs", "use crate::engine::Engine;", "sqlite.rs:1: `store` names `crate::engine::Engine`");
    refused("engine/drive.rs", "fn f() { crate::provider::go(); }", "`engine` names");
    refused("probe/http.rs", "use crate::plugin::serve;", "allowed: clock");
    refused(
        "backend/redfish/power.rs",
        "use crate::maintenance::queue::Ticket;",
        "maintenance::machine, maintenance::gate, maintenance::refusal, maintenance::service, kubernetes, clock",
    );
    refused("backend/mod.rs", "use crate::maintenance::*;", "crate::maintenance::*");
    refused("provider/config/provider_block.rs", "use crate::cli;", "`crate::cli`");
    refused("main.rs", "use terraform_provider_metal::store::Store;", "`main` names");
    refused("lib.rs", "pub use store::Store;", "`main` names");
}

#[test]
fn data_knows_no_rule() {
    refused(
        "maintenance/model/state.rs",
        "use super::super::decide::Goal;",
        "data names the rule `crate::maintenance::decide::Goal`",
    );
    refused("maintenance/model/spec.rs", "use crate::maintenance::gate::own;", "data names the rule");
    allowed("maintenance/model/state.rs", "use super::spec::Spec; pub(in crate::maintenance) fn f() {}");
    allowed("maintenance/gate.rs", "use super::{model::gate::Order, decide::Goal};");
}

#[test]
fn a_room_may_look_downwards_and_at_itself() {
    allowed("engine/drive.rs", "use crate::{maintenance::decide, store::{self, Store}, clock::Clock};");
    allowed("engine/drive.rs", "use super::attach; use crate::engine::outcome;");
    allowed("backend/mod.rs", "use crate::maintenance::machine::{Power, self};");
    allowed("main.rs", "use terraform_provider_metal::program;");
    allowed("program.rs", "use crate::{cli, plugin};");
    allowed("lib.rs", "pub mod store; mod engine;");
}

#[test]
fn no_way_of_writing_a_path_hides_it() {
    refused("store/mod.rs", "use crate::{clock::Clock, engine as e};", "`crate::engine`");
    refused("store/mod.rs", "use crate::{\n    clock::Clock,\n    engine::{drive::Drive},\n};", "mod.rs:3:");
    refused("store/sqlite.rs", "use super::super::engine::Engine;", "`crate::engine::Engine`");
    refused("store/mod.rs", "mod inner { use super::super::engine; }", "`crate::engine`");
    refused("store/mod.rs", "fn f() { tokio::select! { x = crate::engine::go() => {} } }", "`crate::engine::go`");
    refused("store/mod.rs", "fn f(e: &dyn crate::engine::Trait) {}", "`crate::engine::Trait`");
    refused("store/mod.rs", "pub(in crate::engine) fn f() {}", "`crate::engine`");
    refused("store/mod.rs", "use crate::*;", "`crate::*`");
}

#[test]
fn comments_strings_and_tests_do_not_count() {
    allowed("store/mod.rs", "//! [`crate::engine`]\n// crate::engine::x\nconst A: &str = \"crate::engine::x\";");
    allowed(
        "store/mod.rs",
        "#[cfg(test)]\nmod tests { use crate::engine::Engine; fn f() { std::time::Instant::now(); } }",
    );
    allowed("store/mod.rs", "#[cfg(test)]\nuse crate::engine::{Engine, Other};\nfn f() {}");
    refused("store/mod.rs", "#[cfg(test)]\nmod tests {}\nuse crate::engine::Engine;", "`crate::engine::Engine`");
    refused("store/mod.rs", "#[cfg(not(test))]\nuse crate::engine::Engine;", "`crate::engine::Engine`");
}

#[test]
fn a_file_that_is_declared_for_tests_is_left_out() {
    let tests = Source { file: "store/conformance.rs".to_owned(), text: "use crate::engine::Engine;".to_owned() };
    let with = |text: &str| Source { file: "store/mod.rs".to_owned(), text: text.to_owned() };
    let declared = [with("#[cfg(test)]\nmod conformance;"), tests.clone()];
    assert_eq!(check::violations(&rules(), &declared).len(), 0);
    let plain = [with("mod conformance;"), tests];
    assert_eq!(check::violations(&rules(), &plain).len(), 1);
}

#[test]
fn a_new_room_must_be_in_the_table() {
    refused("sidedoor/mod.rs", "", "`sidedoor` is not in the table");
    refused("helpers.rs", "", "`helpers` is not in the table");
}

#[test]
fn the_rules_are_pure() {
    refused("maintenance/decide.rs", "use std::{fs, fmt};", "`std::fs`");
    refused("maintenance/decide.rs", "use std::net::IpAddr;", "`std::net`");
    refused("maintenance/decide.rs", "use std::time::{Duration, SystemTime};", "`std::time::SystemTime`");
    allowed(
        "maintenance/decide.rs",
        "use std::{time::Duration, collections::BTreeMap};\nuse jiff::Timestamp;\nuse serde::Serialize;",
    );
}

#[test]
fn only_some_rooms_name_some_crates() {
    refused("engine/mod.rs", "use tf_provider::value::Value;", "allowed only in provider");
    refused("cli/mod.rs", "fn f() -> tf_provider::Schema {}", "allowed only in provider");
    allowed("provider/shared/schema.rs", "use tf_provider::schema::Schema;");
    refused("backend/mod.rs", "use sqlx::Row;", "allowed only in store, outbound");
}

#[test]
fn only_the_clock_reads_time() {
    refused("engine/mod.rs", "fn f() { let t = std::time::Instant::now(); }", "allowed only in `clock`");
    refused("engine/mod.rs", "fn f() { SystemTime::now(); }", "allowed only in `clock`");
    refused("cli/queue.rs", "fn f() { jiff::Timestamp::now(); }", "allowed only in `clock`");
    refused("probe/mod.rs", "async fn f() { tokio::time::sleep(d).await }", "allowed only in `clock`");
    refused("probe/mod.rs", "use tokio::time::{timeout, sleep};", "`tokio::time::sleep`");
    refused("probe/mod.rs", "async fn f() { time::sleep(d).await }", "allowed only in `clock`");
    refused("store/mod.rs", "use tokio::time::Instant;", "allowed only in `clock`");
    refused("store/mod.rs", "fn f() { std::thread::sleep(d) }", "allowed only in `clock`");
    for sample in [
        "fn f() { reqwest::Client::builder(); }",
        "use reqwest::Client; fn f() { Client::builder(); }",
        "fn f() { reqwest::ClientBuilder::new(); }",
        "use kube::{Client, Config}; fn f(config: Config) { Client::try_from(config); }",
        "use sqlx::postgres::PgPoolOptions;",
        "use tokio::net::TcpStream; async fn f() { TcpStream::connect(a).await; }",
    ] {
        refused("store/mod.rs", sample, "creates a client; allowed only in `outbound`");
    }
    allowed("clock.rs", "fn f() { std::time::SystemTime::now(); tokio::time::sleep(d); }");
    allowed("probe/mod.rs", "use tokio::time::timeout; use std::time::Duration;");
}

#[test]
fn nothing_prints_but_the_program() {
    refused("engine/mod.rs", "fn f() { println!(\"x\"); }", "`println!`");
    refused("cli/mod.rs", "fn f() { if a { eprintln!(\"x\") } }", "`eprintln!`");
    allowed("main.rs", "fn main() { eprintln!(\"x\"); }");
    allowed("cli/mod.rs", "fn f() { writeln!(out, \"x\"); }");
}

#[test]
fn a_file_has_a_length_that_can_be_read() {
    allowed("engine/mod.rs", &"\n".repeat(450));
    refused("engine/mod.rs", &"\n".repeat(451), "451 lines, more than 450");
    let tests = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(450), "\n".repeat(90));
    allowed("engine/mod.rs", &tests);
    refused("engine/mod.rs", &format!("{tests}\n"), "451 lines, more than 450");
}

#[test]
fn a_text_that_is_no_rust_is_reported() {
    refused("engine/mod.rs", "fn f( {", "cannot be read");
}

#[test]
fn the_manifest_is_read() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nfutures-util = { version = \"0.3\" }\nserde = \"1\"\ntokio.workspace = true\n[dev-dependencies]\nproptest = \"1\"\n";
    let names: Vec<String> = check::dependencies(manifest).into_iter().collect();
    assert_eq!(names, ["futures_util", "serde", "tokio"]);
}
