"""RIoTBench's queries ETL and STATS over one generator of sensor data, as Lachesis runs them (section 6.2)."""
