"""The PJRT client, plugin choice, configuration and program cache."""
