//! Inventory files: errors show positions but never content, because a file can contain a secret
//! by mistake.
use mutatis::Context;
use terraform_provider_metal::backend::redfish::parse_inventory;

use crate::{
    SENTINEL,
    child::{Outcome, Target, kind},
    mutate,
};

const WORDS: [&str; 34] = [
    "endpoint",
    "system_id",
    "lock_key",
    "labels",
    "username",
    "password_file",
    "password_env",
    "ca_certificate_file",
    "certificate_sha256",
    "insecure",
    "password",
    "node1",
    "https://10.0.0.1",
    ": ",
    "\n  ",
    "\n",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "<<: *a",
    "!!binary ",
    "!!str ",
    "|\n  ",
    ">\n",
    "---\n",
    "...\n",
    "? ",
    "# ",
    "\"format_version\": \"1.0\"",
    "\t",
];

pub struct Inventory;

impl Target for Inventory {
    fn begin(&mut self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn mutate(&mut self, context: &mut Context, input: &mut Vec<u8>, others: &[Vec<u8>]) {
        mutate::text(context, input, others, &WORDS);
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let text = String::from_utf8_lossy(input);
        // A misplaced password; the mutations affect its neighbours.
        let text = text.replace("SECRET", SENTINEL);
        match parse_inventory(&text) {
            // Parsed values are not printed unchanged anywhere.
            Ok(servers) => Outcome { kind: kind(&format!("{servers:?}")), ..Outcome::default() },
            Err(problem) => Outcome { kind: kind(&problem), said: problem.into_bytes(), broken: None },
        }
    }
}
