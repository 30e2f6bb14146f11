"""Counts the words of Treadle's own documents: a source, two operators (one keeps state), and a sink.

    treadle run examples/01_word_count.py --for 20s
    python examples/01_word_count.py

Both leave the counts in out/word_count.db. Run it a second time: nothing is counted twice, since it goes on where it
was (.treadle/word-count). Delete that folder and the file to start from nothing.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from pyspark.sql import functions as F

import treadle

DOCUMENTS = Path(__file__).resolve().parent.parent / "docs"
COUNTS = Path("out/word_count.db")

p = treadle.Pipeline("word-count")


@p.source
def lines(spark):
    """A folder as a stream: each file is read once, and files that come later are read when they come."""
    return spark.readStream.option("maxFilesPerTrigger", 1).text(f"{DOCUMENTS}/*.md")


@p.operator
def words(lines):
    """Reads `lines` because its parameter is called so."""
    each = F.explode(F.split(F.lower("value"), "[^a-z]+"))
    return lines.select(each.alias("word")).where("length(word) > 3")


@p.operator
def counted(words):
    """No row of it is ever final, so what comes out of each batch is the words whose count has changed."""
    return words.groupBy("word").count()


@p.sink
def table(counted):
    """Writes a count over the older one, so a batch that is repeated after a crash changes nothing.

    It gets what foreachBatch gives; the batch id is a second parameter for those who want it. A batch may have a word
    several times, as `counted` may have run several times: the newest count is the largest.
    """
    newest = counted.groupBy("word").agg(F.max("count").alias("count"))
    COUNTS.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(COUNTS)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count INTEGER)")
        database.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?)", newest.collect())


def most_frequent(number=10):
    """The words that came most often so far, with their counts."""
    with closing(sqlite3.connect(COUNTS)) as database:
        return database.execute(
            "SELECT word, count FROM counts ORDER BY count DESC, word LIMIT ?", (number,)
        ).fetchall()


if __name__ == "__main__":
    p.run(seconds="20s")
    for word, count in most_frequent():
        print(f"{count:5} {word}")
