//! Headless Chromium: renders a page and returns the resulting document.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::shell::{command, which};

/// Time limit for rendering.
const RENDERED: Duration = Duration::from_secs(100);

/// A window for one page.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// True for a dark colour scheme.
    pub dark: bool,
}

impl Window {
    /// Renders the page at `url`, with a screenshot in the file `shot`. Returns the document after its scripts have
    /// run.
    ///
    /// # Errors
    ///
    /// Chromium is missing, failed, or wrote to its console.
    pub fn render(self, url: &str, shot: &Path) -> Result<String> {
        let profile = tempfile::tempdir()?;
        let (width, height) = self.size;
        let mut browser = command(which("chromium").context("chromium is not there")?)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--enable-logging=stderr", "--dump-dom"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--screenshot={}", shot.display()))
            .limit(RENDERED);
        if self.dark {
            browser = browser.arg("--blink-settings=preferredColorScheme=0");
        }
        let output = browser.arg(url).output()?;
        ensure!(!output.stderr.contains("CONSOLE"), "{url}: {}", output.stderr);
        Ok(output.stdout)
    }
}
