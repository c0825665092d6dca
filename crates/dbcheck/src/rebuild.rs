//! A new database in the place of a damaged one, which stays beside it.
use std::io;
use std::path::{Path, PathBuf};

use rt::{BlockingFile, Rt};

use crate::salvage::Salvaged;

/// Lets `make` write what it can read of the database `name` in `dir` to a new one, which then takes its place. The damaged file stays
/// beside it, under the name that is answered. Without a record nothing is changed. Nobody may have the database open.
///
/// # Errors
/// What `make` answers, or that there is no space; with the file in question.
pub async fn rebuild<M>(rt: &Rt, dir: &Path, name: &str, make: M) -> Result<(Salvaged, PathBuf), (PathBuf, io::Error)>
where
    M: FnOnce(&dyn BlockingFile, Box<dyn BlockingFile>) -> io::Result<Salvaged> + Send + 'static,
{
    let (old, new) = (dir.join(name), dir.join(format!("{name}.salvaged")));
    let from = rt.open_blocking(&old, false).map_err(|e| (old.clone(), e))?;
    if from.is_empty().map_err(|e| (old.clone(), e))? {
        let why = "it has no bytes, and nothing can be saved of that: put its backup or copy there; 'stria mdt restore' makes a metadata store of a backup where its directory was moved away, 'stria ost replace' an empty store in the place of an OST's";
        return Err((old, io::Error::new(io::ErrorKind::InvalidData, why)));
    }
    let aside = aside(rt, dir, name);
    let failed = |e| (new.clone(), e);
    // What an earlier attempt left.
    rt.unlink(&new).map_err(failed)?;
    let to = rt.open_blocking(&new, true).map_err(failed)?;
    let done = rt.offload(move || crate::guarded(|| make(&*from, to))).await;
    let saved = match done.unwrap_or_else(|why| Err(io::Error::other(why))) {
        Ok(saved) if saved.records > 0 => saved,
        other => {
            let _ = rt.unlink(&new);
            return other.map(|none| (none, aside)).map_err(failed);
        }
    };
    rt.replace(&new, &old, &aside).map_err(|e| (dir.into(), e))?;
    Ok((saved, aside))
}

/// A name for the damaged file that nothing has.
fn aside(rt: &Rt, dir: &Path, name: &str) -> PathBuf {
    let numbered = |n: u32| dir.join(format!("{name}.damaged{}", if n == 0 { String::new() } else { n.to_string() }));
    (0..).map(numbered).find(|p| !rt.has_file(p)).expect("there are more numbers than files")
}
