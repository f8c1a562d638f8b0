# Needs OpenTofu 1.7 or Terraform 1.8.
output "open_on_christmas_eve" {
  value = provider::metal::in_window("0 22 * * *", "4h", "Europe/Berlin", "2026-12-24T23:00:00+01:00")
}
