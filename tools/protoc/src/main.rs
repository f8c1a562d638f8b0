//! Copies the vendored `protoc` and Google's well-known types to the folder named as the first
//! argument.
use std::{env, error::Error, fs, path::Path};

fn copy_tree(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let to = env::args().nth(1).ok_or("usage: bring-protoc FOLDER")?;
    let to = Path::new(&to);
    fs::create_dir_all(to.join("bin"))?;
    fs::copy(protoc_bin_vendored::protoc_bin_path()?, to.join("bin/protoc"))?;
    copy_tree(&protoc_bin_vendored::include_path()?, &to.join("include"))
}
