"""Words that belong to one topic, for composed questions.

``topic: nouns / verbs``, longer entries continued on indented lines. Put into many frames, they
teach the model to hear what a question is about from any of its words, however it is built. The
first topics have rules of their own in ``corpus_topics.py`` (matched by their first noun); the
others only have a name.
"""

from dataclasses import dataclass
from functools import cache
from random import Random

from corpus_facts import parse_words
from corpus_sums import fix_article

THESAURUS = """
opening times: opening, opening hour, start of work, front door, early morning, beginning of the
    day / open, unlock the door, start work, begin early, come in early
closing time: closing, end of work, evening, knocking off, late afternoon / close, finish, go
    home, stop working, leave for the day, lock up
the lunch break: lunch, midday break, noon break, lunch hour, sandwich break, midday meal / eat
    lunch, have a bite at noon, take my lunch, pause at midday
annual leave: holiday, vacation, leave, free days, time off, days off, summer holiday, yearly
    leave, leave days / take a holiday, go on vacation, have days off, go away for a week, rest
    for a fortnight
leave requests: holiday form, leave request, holiday application, permission for leave / ask for
    leave, request time off, apply for a holiday, book leave, arrange a vacation, get a day off
illness: illness, sickness, fever, cold, flu, headache, cough, stomach ache, infection / be ill,
    feel sick, fall ill, stay in bed, call in sick, feel unwell, catch a cold, recover
a doctor's note: doctor's note, sick note, certificate, medical letter, proof of illness / see the
    doctor, bring a certificate, get a note, prove that I am ill
payday: pay, wages, salary, payday, income, earnings, pay slip, money for my work / get paid,
    receive my wages, earn my money, be paid, get my salary
overtime: overtime, extra hours, long days, additional work, extra work, late work / work longer,
    stay late, do extra hours, work more than usual, work overtime
the trial period: trial period, probation, trial time, first weeks, test period, newcomer / be on
    trial, prove myself, be tried out, try a new job, be a beginner
notice: notice, resignation, notice period, end of my contract, termination / quit, resign, leave
    the company, give notice, end my job, find another job, give up my post
parental leave: baby, newborn, birth, pregnancy, parental leave, new mother, new father, expected
    child / have a baby, become a father, become a mother, expect a child, give birth
weddings: wedding, marriage, bride, groom, wedding day, honeymoon, engagement / marry, get
    married, wed, become husband and wife
funerals: funeral, death, burial, bereavement, mourning, dead relative, loss in the family / die,
    mourn, pass away, bury my uncle, lose a relative, grieve
home working: home office, home working, remote work, telework, working from home / work at home,
    work remotely, stay at home to work, do my job from my sofa
being late: delay, late arrival, lateness, late bus, late train, traffic jam / be late, arrive
    late, oversleep, miss the bus, be delayed, get stuck in traffic, turn up late
clocking in: time clock, time sheet, working hours, hours worked, record of hours / clock in, sign
    in, record my hours, note my time, register my hours, write down my hours
shifts: shift, rota, early shift, late shift, night shift, shift plan / swap shifts, change my
    shift, trade a shift, exchange shifts, switch my shift
weekend work: weekend, Saturday, Sunday, Saturday work, Sunday work / work at weekends, come in on
    Saturday, work on Sunday, give up my weekend
the yearly review: review, appraisal, feedback, evaluation, assessment, talk with my boss / be
    reviewed, talk about my work, judge my work, evaluate me, get feedback
training: training, course, class, seminar, education, lesson, workshop day, study / learn, take a
    course, attend a class, study, improve my skills, be taught
expenses: expenses, receipt, bill, refund, repayment, costs, outlay, own money / claim expenses,
    get my money back, be refunded, be repaid, pay myself, be reimbursed
meals on trips: meal allowance, dinner on a trip, food on a journey, restaurant bill, trip food /
    eat on a journey, dine on a trip, eat while travelling, have dinner away
train tickets: ticket, train, railway, journey, flight, rail, trip, travel, ride / travel, go by
    train, fly, take a train, make a journey, go by rail, visit a customer
hotels: hotel, hotel room, inn, guest house, night away, lodging, overnight stay, bed for the
    night / stay overnight, sleep in a hotel, spend the night, book a hotel
cycling to work: cyclist, cycling money, cycling allowance, bike ride, cycling mile / cycle, come
    by bicycle, ride my bike, pedal to work, travel by bike
pensions: pension, retirement, old age, pensioner, savings for old age, retirement plan / retire,
    save for old age, stop working for ever, become a pensioner
long service: long service, anniversary, jubilee, decade, many years of work, loyalty, twenty
    years / stay for many years, serve for a decade, be loyal, work here for ten years
the staff discount: discount, reduction, staff price, lower price, cheap goods, price cut, half
    price / buy cheaper, save money on our goods, get a discount, pay less, buy our products
recommending a friend: recommendation, new colleague, recruit, hiring bonus, job for my friend,
    vacancy / recommend a friend, bring in a friend, hire someone, introduce a friend, find new
    staff, recruit somebody
volunteering: volunteering, charity, good cause, volunteer, charity work, good deed / volunteer,
    help a charity, do good, support a good cause, help others
moving house: new address, move, new home, removal, new flat / move house, change my address, move
    to another town
bank details: bank account, account number, bank, bank details / change my bank, open a new
    account
mentors: mentor, first day, guide, introduction, tour / be shown around, start here, be
    introduced, have my first day
the eye test: glasses, spectacles, eye test, eyesight, lenses / have my eyes tested, see badly,
    need glasses
childcare: child, nursery, kindergarten, son, daughter, children, toddler / bring my child, look
    after children, mind the children
first aid: injury, wound, accident, bandage, first aid, plaster, bleeding, broken arm, burn, cut /
    be hurt, bleed, get injured, cut myself, faint, break my leg, burn my hand
fire: fire, smoke, flames, fire alarm, alarm, blaze, emergency exit, meeting point / burn, smell
    smoke, escape a fire, hear the alarm, gather outside, assemble, flee
the fire drill: drill, fire drill, fire practice, safety exercise, rehearsal, evacuation test /
    practise leaving, rehearse an escape, train for a fire, hold a drill
the wifi: wifi, network, internet, wireless, web access, connection, signal / go online, connect
    my phone, surf the web, connect my laptop, get internet
passwords: password, login, account, log in, passcode, pin, access / log in, sign on, forget my
    password, reset a password, unlock my account
computers: computer, laptop, screen, keyboard, mouse pointer, hard disk, notebook computer /
    repair my laptop, start my computer, fix the screen, have my computer mended
the printer: printer, print, copy, photocopy, printout, document, copier, ink, paper copy / print,
    copy a page, print a letter, make copies, photocopy
meeting rooms: meeting room, conference room, room for a meeting, conference, meeting / meet, book
    a room, reserve a room, hold a meeting, sit together
visitors: visitor, guest, visit, caller, guest badge, visiting customer / receive a guest, welcome
    visitors, expect a visitor, register a guest, visit me
parking: parking, car park, car, parking space, vehicle, garage, van, parking permit / park, park
    my car, drive to work, come by car, leave my van
bicycles: bicycle, bike, bike shed, cycle stand, bike rack, bicycle lock / lock my bike, store my
    bicycle, leave my bike, keep my bike safe
lockers: locker, locker key, cupboard, lockable box, cabinet, safe place for my bag / lock away my
    things, store my bag, lock up my purse, keep my coat
lost property: lost property, lost thing, missing umbrella, found object, lost gloves, lost hat /
    lose my scarf, find a ring, search for my hat, look for my gloves, miss my bag, disappear
the canteen: canteen, meal, dish, menu, cafeteria, hot meal, food, restaurant / eat, buy food,
    have a meal, buy a dish, feed myself
coffee: coffee, tea, kettle, hot drink, tea break, cup of tea, mug, teapot, espresso / drink tea,
    brew coffee, make tea, boil water, have a drink, put on the kettle
the kitchen: kitchen, washing up, dishes, sink, dirty plates, dirty cups, dishwasher, tableware /
    wash up, clean the kitchen, do the dishes, tidy the kitchen, wash the cups, rinse plates
pets: pet, dog, cat, puppy, animal, hamster, terrier, kitten, parrot / bring my dog, keep a cat,
    walk my dog, take my pet along
smoking: smoking, cigarette, cigar, pipe, tobacco, smoker, lighter / smoke, have a cigarette,
    light a pipe, smoke a cigar
music: music, radio, song, songs, singing, headphones, tune, melody, concert / listen to music,
    sing, play songs, turn on the radio, hum, whistle
the dress code: clothes, dress code, uniform, shoes, outfit, trousers, jacket, clothing, shirt /
    dress, wear jeans, put on shoes, be dressed, wear a tie, wear shorts
the laundry: laundry, dirty clothes, washing, stain, overalls, dirty coat, clean shirt / wash my
    coat, clean my shirt, get a stain out, have my clothes washed
goggles: goggles, helmet, gloves, ear plugs, mask, safety glasses, eye protection, protection /
    protect my eyes, protect my head, shield my face, guard my hands, wear a mask
tools: tool, hammer, saw, drill, ladder, toolbox, borrowed tool, screwdriver / borrow a drill,
    lend a tool, take a hammer home, use a saw at home, need a ladder
machines: machine, engine, motor, lathe, press, equipment, machinery / repair the machine, oil the
    engine, stop the press, mend the motor
orders: order, supplies, stock, material, cloth, fabric, wood, silk, yarn, paint, goods / order
    material, buy more cloth, run out of fabric, need more stock, purchase wood
quality checks: test, quality, check, inspection, quality control, trial run, finished product /
    test our goods, check quality, inspect our work, try out a product, examine the product
parcels: parcel, package, post, mail, letter, delivery, shipment, stamp, courier / post a letter,
    send a package, mail a parcel, ship goods, dispatch a box
returns: return, returned goods, exchange, money back, unwanted goods, sent back goods / return
    goods, give back a product, send something back, take back goods, bring it back
complaints: complaint, angry customer, unhappy client, dissatisfaction, criticism, angry letter /
    complain, be unhappy, be angry, be dissatisfied, criticise us, not be satisfied
the press: press, newspaper, journalist, reporter, interview, television, magazine, article / give
    an interview, talk to reporters, speak to the press, appear on television
rubbish: rubbish, waste, bin, recycling, scraps, garbage, leftovers, trash, remnants, offcuts /
    throw away scraps, recycle, sort the waste, empty the bin, use leftovers
spills: spill, puddle, mess, wet floor, spilt paint, oil stain, spilt glue / spill something, wipe
    the floor, mop up, clean up a mess, knock over a pot
the party: party, celebration, feast, festival, outing, dance, company party, jubilee / celebrate,
    have a party, dance, feast together, party
birthdays: birthday, birthday cake, birthday present, birthday song, candle / turn forty,
    celebrate my birthday, get older, be born, bake a cake
ideas: idea, suggestion, proposal, improvement, invention, suggestion box, bright thought /
    suggest something, improve things, propose a change, make it better, invent something
keys: key, badge, door code, key card, lock / open the door, lose my badge, get a key, unlock the
    gate
heating: heating, window, radiator, warmth, draught, cold room / turn on the heating, open a
    window, freeze, sweat
lights: light, lamp, bulb, electricity, switch, power / turn off the light, change a bulb, switch
    on a lamp
plants: plant, flower, garden, flower pot, tree, hedge / water the plants, grow flowers, plant a
    tree, work in the garden
the telephone: telephone, phone call, extension, mobile, call, ring tone / phone somebody, make a
    call, dial a number, ring a client
the newsletter: newsletter, news, announcement, notice board, bulletin / read the news, hear the
    latest, announce something
the weather: weather, rain, snow, storm, wind, sunshine, fog, thunder / rain, snow, get wet, blow
    hard
sport: sport, football, tennis, swimming, gym, running, match / play football, swim, exercise, run
    a race, train in the gym
school: school, pupil, teacher, homework, exam, classroom / go to school, do homework, pass an
    exam, teach
health: health, hospital, medicine, dentist, nurse, pill / see a dentist, take medicine, heal,
    keep fit
money: money, coin, price, cost, budget, cash, loan / spend money, save coins, lend money, afford
    it
cooking: recipe, cook, pan, oven, stew, spice / cook, bake, fry an egg, stir the soup
reading: book, story, library, novel, page, poem / read, borrow a book, turn the page
family: family, mother, father, sister, brother, uncle, aunt, cousin, grandmother / visit my
    family, call my mother, meet my cousin
the law: law, court, judge, police, thief, crime / break the law, go to court, steal
the sea: sea, beach, ship, boat, wave, sailor, harbour / sail, swim in the sea, row a boat
farming: farm, field, cow, tractor, harvest, barn / milk a cow, plough, harvest corn
time: clock, hour, minute, calendar, date, week / tell the time, wait an hour, count the days
sleep: sleep, bed, night, dream, pillow, nap / sleep, dream, nap, wake up
building: house, wall, roof, brick, builder, floor / build a house, lay bricks, mend the roof
art: picture, painting, drawing, artist, museum, sculpture / paint, draw, visit a museum
toys: toy, doll, kite, ball, puzzle, game / play, fly a kite, throw a ball, solve a puzzle
shopping: shop, market, customer, till, basket, shopping list / go shopping, buy apples, pay at
    the till
science: science, experiment, star, planet, microscope, telescope / study the stars, do an
    experiment
the body: hand, foot, head, tooth, hair, knee, back / wash my hands, cut my hair, brush my teeth
contracts: contract, agreement, signature, paper, clause / sign a contract, agree, make a contract
security: guard, thief, alarm system, camera, burglar / guard the house, watch the gate
meetings: agenda, minutes, discussion, chair / discuss things, talk it over, chair a discussion
languages: language, word, grammar, translation, French, dictionary / speak French, translate a
    word
"""

OPENERS = (
    "", "", "", "", "", "Excuse me, ", "My colleague asks: ", "I am new here. ", "Well, ",
    "It is Monday. ", "My boss wants to know: ", "Could you tell me: ", "Listen, ", "By the way, ",
    "I am sorry, but ", "Good day, ", "Just asking: ", "One question, ",
)
NOUN_FRAMES = (
    "what is the rule about the {w}?", "when is the {w}?", "where is the {w}?",
    "what about the {w}?", "who is in charge of the {w}?", "how does the {w} work here?",
    "who knows about the {w}?", "how much is the {w}?", "how long is the {w}?",
    "I need to know about the {w}.", "is there a {w}?", "whom do I ask about the {w}?",
    "how do I get a {w}?", "where do I go for the {w}?", "what do I do about my {w}?",
    "I have a {w}, what should I do?", "how often is there a {w}?",
    "what does the firm do about a {w}?", "on which day is the {w}?", "can I have a {w}?",
    "there is a problem with the {w}, who helps?", "which {w} is the right one?",
    "who has the {w}?", "what does the company say about my {w}?",
    "a {w} came up, what happens now?", "my {w}?", "until when can I have the {w}?",
    "what is the date of the {w}?", "in what way is the {w} done?", "tell me more about the {w}.",
    "whose {w} is it?", "what do people here get for a {w}?", "to whom do I go with the {w}?",
    "somebody mentioned a {w}, what is it?", "{w}",
)
VERB_FRAMES = (
    "may I {w}?", "can I {w}?", "how do I {w}?", "where can I {w}?", "when can I {w}?",
    "I want to {w}.", "I would like to {w}, whom do I ask?", "who may {w} here?",
    "I must {w}, what now?", "what happens if I {w}?", "how long may I {w}?",
    "what do I have to do to {w}?", "is it all right to {w}?", "what is the rule if we {w}?",
    "which is the place to {w}?", "how much do I get when I {w}?",
    "my workmate wants to {w}, how is that done?", "is everybody allowed to {w}?",
    "do we ever {w}?", "what do we do when people {w}?", "who helps me to {w}?",
    "what do I need to {w}?", "I am going to {w}, who needs to know?", "at what time may I {w}?",
    "what does it cost to {w}?", "by when must I {w}?", "does the firm let me {w}?",
    "what is given to those who {w}?",
)
TAILS = ("", "", "", "", "", "", " I have to know today.", " Thank you.", " Nobody could tell me.",
         " I am not sure.", " It is for a friend.", " I have just started.", " Please help.")


@dataclass(frozen=True)
class Entry:
    """The words that belong to one topic."""

    nouns: tuple[str, ...]
    verbs: tuple[str, ...]


@cache
def entries() -> dict[str, Entry]:
    """Return the words of every topic by its name."""
    result = {}
    for line in THESAURUS.strip().replace("\n    ", " ").split("\n"):
        name, words = line.split(": ")
        nouns, verbs = words.split(" / ")
        result[name] = Entry(tuple(parse_words(nouns)), tuple(parse_words(verbs)))
    return result


def compose_question(rng: Random, entry: Entry) -> str:
    """Build a question out of an opener, a frame around one of the words, and a tail."""
    if rng.random() < 0.5:
        question = rng.choice(NOUN_FRAMES).format(w=rng.choice(entry.nouns))
    else:
        question = rng.choice(VERB_FRAMES).format(w=rng.choice(entry.verbs))
    opener = rng.choice(OPENERS)
    if not opener.endswith((", ", ": ")):
        question = question[0].upper() + question[1:]
    return fix_article(opener + question) + rng.choice(TAILS)
