//! Targets with one defect each, which the fuzzer must find.
use mutatis::Context;

use crate::{
    SENTINEL,
    child::{Outcome, Target},
    mutate,
};

/// Each defect, with the expected report.
pub const KINDS: [(&str, &str); 6] = [
    ("defect-panic", "a panic at"),
    ("defect-stack", "the process ended by signal"),
    ("defect-memory", "the process ended by signal"),
    ("defect-slow", "of processor time"),
    ("defect-secret", "the password came out"),
    ("defect-rule", "a violated rule"),
];

pub struct Defect(String);

impl Defect {
    pub fn named(name: &str) -> Self {
        assert!(KINDS.iter().any(|(known, _)| *known == name), "unknown target {name}");
        Self(name.to_owned())
    }
}

/// Recurses like a parser without a depth limit.
#[allow(unconditional_recursion, reason = "that is the defect")]
fn descend(levels: &mut Vec<u8>) -> usize {
    levels.push(0);
    let deeper = descend(levels);
    deeper + levels.len()
}

impl Target for Defect {
    fn begin(&mut self) -> Vec<Vec<u8>> {
        vec![b"one two three".to_vec()]
    }

    fn mutate(&mut self, context: &mut Context, input: &mut Vec<u8>, others: &[Vec<u8>]) {
        mutate::text(context, input, others, &["BAD", "one"]);
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let text = String::from_utf8_lossy(input);
        let mut outcome = Outcome { kind: text.len().to_string(), ..Outcome::default() };
        if !text.contains("BAD") {
            return outcome;
        }
        match self.0.as_str() {
            "defect-panic" => {
                let number: Result<u8, _> = text.parse();
                number.unwrap();
            }
            "defect-stack" => {
                descend(&mut Vec::new());
            }
            "defect-memory" => outcome.said = vec![1; 3 << 30],
            "defect-slow" => {
                let used = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
                let end = used() + rustix::time::Timespec { tv_sec: 0, tv_nsec: 400_000_000 };
                while used() < end {}
            }
            "defect-secret" => outcome.said = format!("cannot read {SENTINEL}").into_bytes(),
            _ => outcome.broken = Some("a violated rule".to_owned()),
        }
        outcome
    }

    fn longest(&self) -> std::time::Duration {
        std::time::Duration::from_millis(300)
    }
}
