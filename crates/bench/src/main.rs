//! The program `fsstack-bench`.

fn main() -> std::process::ExitCode {
    fsstack_bench::main()
}
