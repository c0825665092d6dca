//! The project's own files, and Rust text without its strings and comments.
use std::path::Path;
use std::process::Command;

/// Tracked files and new ones that are not ignored, relative to the root.
pub fn files(root: &Path) -> Result<Vec<String>, Vec<String>> {
    let out = Command::new("git").current_dir(root).args(["ls-files", "-co", "--exclude-standard", "-z"]).output();
    match out {
        Ok(out) if out.status.success() => {
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let mut list: Vec<String> = text.split_terminator('\0').map(String::from).collect();
            list.retain(|f| root.join(f).is_file());
            list.sort();
            list.dedup();
            Ok(list)
        }
        Ok(out) => Err(vec![format!("git ls-files: {}", String::from_utf8_lossy(&out.stderr))]),
        Err(e) => Err(vec![format!("git: {e}")]),
    }
}

/// A function's name, first line (from 1) and lines of code.
pub struct Function {
    /// Name.
    pub name: String,
    /// Where it begins.
    pub line: usize,
    /// Lines that are neither blank nor comment, head and end included.
    pub code_lines: usize,
}

/// Functions of a formatted Rust file: from `fn` to the closing brace of the same indentation.
pub fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = fn_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let close = format!("{}}}", &line[..indent]);
        let body = lines[at..].iter().take_while(|l| !is_end(l, &close, indent));
        let code = |l: &&&str| !l.trim().is_empty() && !l.trim_start().starts_with("//");
        found.push(Function { name, line: at + 1, code_lines: body.filter(code).count() + 1 });
    }
    found
}

/// The closing brace, or the end of a head without a body.
fn is_end(line: &str, close: &str, indent: usize) -> bool {
    let at_indent = line.len() - line.trim_start().len() == indent;
    line == close || at_indent && (line.ends_with(';') || line.ends_with('}'))
}

fn fn_name(line: &str) -> Option<String> {
    let mut words = line.trim_start();
    for word in ["pub ", "const ", "async ", "unsafe ", "extern \"C\" "] {
        if word == "pub " && words.starts_with("pub(") {
            words = words.split_once(") ").map_or(words, |(_, rest)| rest);
        }
        words = words.strip_prefix(word).unwrap_or(words);
    }
    let rest = words.strip_prefix("fn ")?;
    Some(rest.split(['(', '<']).next().unwrap_or_default().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured_in_lines_of_code() {
        let text = "impl X {\n    pub(crate) async fn long(\n        &self,\n    ) -> u32 {\n        // why\n\n        if a {\n            1\n        }\n    }\n    fn one(&self) -> u8 { 1 }\n}\nfn two();\n";
        let f: Vec<_> = functions(text).into_iter().map(|f| (f.name, f.line, f.code_lines)).collect();
        assert_eq!(f[0], ("long".into(), 2, 7));
        assert_eq!((f[1].0.as_str(), f[1].2), ("one", 1));
        assert_eq!(f[2].0, "two");
    }
}
