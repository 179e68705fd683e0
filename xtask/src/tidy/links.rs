//! Every page that a source or a page names exists.

use std::path::{Component, Path, PathBuf};

use super::Offence;
use super::lexer::line_of;

/// Where pages are; a name that begins so is a path from the workspace's directory.
const PAGES: &str = "docs/";
const PAGE_END: &str = ".md";

/// The names of pages in `text` that `exists` does not know. In a page itself, links are followed too.
pub fn check(path: &str, text: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<Offence> {
    let mut offences = Vec::new();
    let mut missing = |at: usize, name: &str| {
        offences.push(Offence::new(path, line_of(text, at), format!("`{name}` does not exist")));
    };
    for (at, _) in text.match_indices(PAGES) {
        let name = page_name(&text[at..]);
        let whole = at == 0 || !is_part_of_path(text.as_bytes()[at - 1]);
        if whole && name.ends_with(PAGE_END) && !exists(Path::new(name)) {
            missing(at, name);
        }
    }
    if path.ends_with(PAGE_END) {
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', '#', ' ']).next().unwrap_or_default();
            let outside = target.is_empty() || target.contains(':');
            if !outside && !exists(&resolve(path, target)) {
                missing(at, target);
            }
        }
    }
    offences
}

/// The longest name that can be a page's, up to and with its ending.
fn page_name(text: &str) -> &str {
    let length = text.bytes().take_while(|byte| is_part_of_path(*byte)).count();
    let name = &text[..length];
    name.find(PAGE_END).map_or(name, |end| &name[..end + PAGE_END.len()])
}

fn is_part_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/')
}

/// A link's target, from the workspace's directory.
fn resolve(page: &str, target: &str) -> PathBuf {
    let mut resolved = Path::new(page).parent().map_or_else(PathBuf::new, Path::to_owned);
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            Component::Normal(name) => resolved.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(path: &str, text: &str) -> Vec<String> {
        let exists =
            |path: &Path| ["docs/a.md", "README.md", "docs/pictures"].iter().any(|known| path == Path::new(known));
        check(path, text, &exists).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_page_that_does_not_exist_is_found() {
        assert_eq!(offences("src/a.rs", "//! See\n//! `docs/b.md`.\n"), ["src/a.rs:2: `docs/b.md` does not exist"]);
        assert!(offences("src/a.rs", "//! See docs/a.md. Not other-docs/b.md, nor docs/evidence/.\n").is_empty());
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let text = "[a](a.md) [b](../README.md#x) [c](https://example.org/z.md) [d](#here) [e](pictures)\n[f](c.md)";
        assert_eq!(offences("docs/a.md", text), ["docs/a.md:2: `c.md` does not exist"]);
    }
}
