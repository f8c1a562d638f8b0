//! Child process that runs the inputs.
use std::{
    cell::Cell,
    collections::HashSet,
    fmt::Write as _,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    panic,
    path::PathBuf,
    time::Duration,
};

use mutatis::{Context, Session, mutators};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};

use crate::{SENTINEL, supervise};

/// Result of one input.
#[derive(Default)]
pub struct Outcome {
    /// All output: results, errors, logs.
    pub said: Vec<u8>,
    /// Kind of result. Inputs with a new kind are mutated further.
    pub kind: String,
    /// A violation found by the target itself.
    pub broken: Option<String>,
}

/// A fuzz target.
pub trait Target {
    /// Returns initial inputs next to the corpus.
    fn begin(&mut self) -> Vec<Vec<u8>>;
    /// Mutates an input. `others` supplies parts of other inputs.
    fn mutate(&mut self, context: &mut Context, input: &mut Vec<u8>, others: &[Vec<u8>]);
    fn run(&mut self, input: &[u8]) -> Outcome;
    /// CPU time limit per input.
    fn longest(&self) -> Duration {
        Duration::from_secs(2)
    }
}

/// Memory limit beyond the use at the start.
const MEMORY: u64 = 512 << 20;

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Runs the corpus, then mutations of it for the given time.
pub fn run(target: &mut impl Target) {
    let variable = |name: &str| std::env::var(name).unwrap();
    let corpus = PathBuf::from(variable(supervise::CORPUS));
    let current = PathBuf::from(variable(supervise::CURRENT));
    let limit = Duration::from_secs_f64(variable(supervise::SECONDS).parse().unwrap());
    let seed: u64 = variable(supervise::SEED).parse().unwrap();

    let mut pool = target.begin();
    let mut files: Vec<_> = fs::read_dir(&corpus).into_iter().flatten().map(|file| file.unwrap().path()).collect();
    files.sort();
    pool.extend(files.iter().map(|file| fs::read(file).unwrap()));
    assert!(!pool.is_empty(), "no input to begin with");
    bound_memory();
    panic::set_hook(Box::new(|info| {
        PANICKED.set(true);
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        println!("FOUND a panic at {place}");
    }));

    // The test harness has printed an unfinished line.
    println!();
    let (mut tried, mut kinds) = (0_u64, HashSet::new());
    let mut spoke = Duration::ZERO;
    let began = time(ClockId::Monotonic);
    let mut attempt = |target: &mut _, input: &[u8], kinds: &mut HashSet<String>, known: usize| {
        fs::write(&current, input).unwrap();
        let outcome = try_one(target, input);
        let new = outcome.is_some_and(|outcome| kinds.insert(outcome.kind));
        tried += 1;
        let now = time(ClockId::Monotonic).saturating_sub(began);
        if now.saturating_sub(spoke) > Duration::from_millis(500) || now >= limit {
            spoke = now;
            println!(
                "tried {tried} inputs in {:.1} s: {} kinds of outcome, {known} to mutate",
                now.as_secs_f64(),
                kinds.len()
            );
        }
        new
    };
    for input in &pool {
        attempt(target, input, &mut kinds, pool.len());
    }
    let mut round = 0_u64;
    while time(ClockId::Monotonic).saturating_sub(began) < limit {
        // An input's seed combines the run's seed and the input's number.
        let mut hasher = DefaultHasher::new();
        (seed, round).hash(&mut hasher);
        round += 1;
        let mut session = Session::new().seed(hasher.finish() | 1);
        let mut input = Vec::new();
        let mut mutator = mutators::from_fn(|context: &mut Context, input: &mut Vec<u8>| {
            input.clone_from(context.rng().choose(&pool).expect("the pool is not empty"));
            for _ in 0..=context.rng().gen_index(4).unwrap_or(0) {
                target.mutate(context, input, &pool);
            }
            Ok(())
        });
        session.mutate_with(&mut mutator, &mut input).unwrap();
        if attempt(target, &input, &mut kinds, pool.len()) && input.len() < 100_000 {
            pool.push(input);
        }
    }
}

/// Judges one input. A violation ends the process.
fn try_one(target: &mut impl Target, input: &[u8]) -> Option<Outcome> {
    let before = time(ClockId::ProcessCPUTime);
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| target.run(input))).ok();
    let took = time(ClockId::ProcessCPUTime).saturating_sub(before);
    if PANICKED.get() {
        end();
    }
    if took > target.longest() {
        found(&format!("it took {took:.1?} of processor time"));
    }
    if let Some(outcome) = &outcome {
        if let Some(broken) = &outcome.broken {
            found(broken);
        }
        if contains(&outcome.said, SENTINEL.as_bytes()) {
            found("the password came out");
        }
    }
    outcome
}

pub fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Reports a violation and exits, so that the input stays saved.
fn found(reason: &str) -> ! {
    println!("FOUND {}", reason.replace('\n', " "));
    end()
}

#[allow(clippy::disallowed_methods, reason = "the process does not need cleanup")]
fn end() -> ! {
    std::process::exit(1)
}

/// Sets the memory limit. Exceeding it aborts, which the parent process detects.
fn bound_memory() {
    let status = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let hard = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(pages * 4096 + MEMORY), maximum: hard }).unwrap();
}

fn time(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().unwrap()
}

/// Removes numbers and quoted text, which differ between results of the same kind.
pub fn kind(text: &str) -> String {
    let mut kind = String::new();
    let mut quoted = false;
    for character in text.chars().take(2000) {
        match character {
            '"' | '`' => quoted = !quoted,
            _ if quoted => {}
            '0'..='9' => {
                if !kind.ends_with('#') {
                    kind.push('#');
                }
            }
            other => kind.push(other),
        }
    }
    let mut hasher = DefaultHasher::new();
    kind.hash(&mut hasher);
    let mut short = String::new();
    let _ = write!(short, "{:x}", hasher.finish());
    short
}
