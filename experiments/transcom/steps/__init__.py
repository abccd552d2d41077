"""The steps of the experiment, by table and figure."""
