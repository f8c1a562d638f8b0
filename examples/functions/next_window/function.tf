# Needs OpenTofu 1.7 or Terraform 1.8.
output "next_weekend" {
  value = provider::metal::next_window("0 22 * * SAT", "4h", "Europe/Berlin", plantimestamp())
}
