"""Quality of data in an application that Treadle did not start: promises are kept by dropping rows."""
