//! Paths of directories that are still to be scanned: each holds its own name and refers to its parent.

use std::sync::Arc;

/// Path of a directory from the root of its branch.
#[derive(Debug)]
pub struct DirPath {
    above: Option<Arc<DirPath>>,
    /// Name below `above`; without it, a path.
    name: Vec<u8>,
}

impl DirPath {
    /// The directory at `path`.
    pub fn from(path: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { above: None, name: path })
    }

    /// The directory `name` in another one.
    pub fn below(above: &Arc<Self>, name: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { above: Some(above.clone()), name })
    }

    /// The path; it may begin with a slash.
    pub fn path(&self) -> Vec<u8> {
        let mut names = vec![&*self.name];
        let mut at = &self.above;
        while let Some(dir) = at {
            names.push(&dir.name);
            at = &dir.above;
        }
        names.reverse();
        names.join(&b'/')
    }
}

impl Drop for DirPath {
    /// Frees the parents without recursion, however deep the path is.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut last) = above.and_then(Arc::into_inner) {
            above = last.above.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_length_is_returned() {
        let mut dir_path = DirPath::from(b"a/b".to_vec());
        for _ in 0..200_000 {
            dir_path = DirPath::below(&dir_path, b"c".to_vec());
        }
        assert!(dir_path.path().starts_with(b"a/b/c/c/") && dir_path.path().len() == 3 + 400_000);
        assert_eq!(DirPath::below(&DirPath::from(Vec::new()), b"x".to_vec()).path(), b"/x");
    }
}
