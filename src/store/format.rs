//! A store's format: a number that is part of every commit's condition.

use super::{StoreError, fault::StoreErrors};

/// The format that this program reads and writes.
pub(super) const FORMAT: i64 = 1;

/// Rejects a different format when a store is opened.
pub(super) fn check(found: i64, about: &StoreErrors) -> Result<(), StoreError> {
    if found == FORMAT { Ok(()) } else { Err(about.newer(found, FORMAT)) }
}

/// Rejects a commit if another program changed the open store's format.
pub(super) fn check_open(found: i64, about: &StoreErrors) -> Result<(), StoreError> {
    if found == FORMAT {
        return Ok(());
    }
    Err(about.unreadable(format!(
        "another provider version changed its format to {found} while this process had it open, and this version supports \
         format {FORMAT}. Nothing was written. Run the command again with that version"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_format_is_rejected() {
        let about = StoreErrors::new("sqlite:///x");
        assert!(check(FORMAT, &about).is_ok() && check_open(FORMAT, &about).is_ok());
        for other in [0, FORMAT + 1] {
            let refused = check(other, &about).unwrap_err().to_string();
            assert!(refused.contains(&format!("format {other}")) && refused.contains("newer version"), "{refused}");
            let refused = check_open(other, &about).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("format to {other}")) && refused.contains("Nothing was written"),
                "{refused}"
            );
        }
    }
}
