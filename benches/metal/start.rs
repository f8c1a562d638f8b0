//! Time from process start to schema, and memory, compared with a small provider written in Go.
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tonic::{client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use crate::{
    host::{Host, Start},
    measure::{median, middle, ms, peak_memory, ratio},
    table::Row,
};

const RUNS: usize = 30;

/// Runs are interleaved, so that load on the machine affects both.
pub async fn measure() -> Vec<Row> {
    let ours = PathBuf::from(env!("CARGO_BIN_EXE_terraform-provider-metal"));
    let Some(go) = std::env::var_os("BENCH_GO_PROVIDER").map(PathBuf::from) else {
        eprintln!("start: skipped, because BENCH_GO_PROVIDER is not set (tools/bench/run does)");
        return Vec::new();
    };
    let mut results: [(Vec<Duration>, Vec<f64>); 2] = Default::default();
    for _ in 0..RUNS {
        for (program, (times, memory)) in [&ours, &go].into_iter().zip(&mut results) {
            let (time, peak) = start(program).await;
            times.push(time);
            memory.push(peak);
        }
    }
    let [(our_times, our_memory), (go_times, go_memory)] = results;
    let (ours, go) = (median(&our_times), median(&go_times));
    let (our_peak, go_peak) = (middle(&our_memory), middle(&go_memory));
    vec![
        Row::new("start of the process to its schema", ms(ours))
            .against(format!("the `time` provider (Go): {}", ms(go)), ratio(ours, go)),
        Row::new("peak memory up to that point", format!("{our_peak:.1} MiB"))
            .against(format!("the `time` provider (Go): {go_peak:.1} MiB"), our_peak / go_peak),
    ]
}

async fn start(program: &Path) -> (Duration, f64) {
    let begin = Instant::now();
    let host = Host::start_with(Start { program: Some(program.to_path_buf()), ..Start::default() }).await;
    schema(&host).await;
    let time = begin.elapsed();
    let peak = peak_memory(host.child.id().unwrap());
    let mut host = host;
    host.child.kill().await.unwrap();
    (time, peak)
}

/// Requests the schema in the provider's protocol version and discards it.
async fn schema(host: &Host) {
    let path = match host.line.split('|').nth(1) {
        Some("5") => "/tfplugin5.Provider/GetSchema",
        _ => "/tfplugin6.Provider/GetProviderSchema",
    };
    let mut client = Grpc::new(host.channel.clone()).max_decoding_message_size(256 << 20);
    client.ready().await.unwrap();
    let codec = ProstCodec::<(), ()>::default();
    client.unary(tonic::Request::new(()), PathAndQuery::from_static(path), codec).await.unwrap();
}
